"""x86-64: host detection, layouts and schedules."""
