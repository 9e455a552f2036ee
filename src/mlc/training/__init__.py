"""Training: gradients of whatever can be expressed, and what is done with them."""
