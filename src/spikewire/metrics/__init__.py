"""What a network costs and how it fires."""
