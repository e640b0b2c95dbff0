"""What is registered: the way in, the rules of every product, the registry, and the way out."""
