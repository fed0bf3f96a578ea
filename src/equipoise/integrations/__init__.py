"""Other libraries. Each has a module of its own here, which loads that library; nothing else of the package does."""
