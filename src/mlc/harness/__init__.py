"""What surrounds a loaded module on the bench: feeding it, comparing what it gives with a reference, and timing it."""
