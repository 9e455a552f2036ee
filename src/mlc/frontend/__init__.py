"""Model files to graphs: one folder a format, found through the entry-point group ``mlc.frontends``."""
