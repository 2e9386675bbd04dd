"""Privacy mechanisms, what they spend, and the bridge to the accounting library."""
