"""Cost models: which of many configurations are fast, learnt from those that have been measured."""
