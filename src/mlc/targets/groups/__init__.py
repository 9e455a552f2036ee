"""What a schedule asks of a fused group, for every machine."""
