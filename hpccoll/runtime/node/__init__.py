"""Within a node: memory that its ranks share, how they wait for each other there, and plans of loads and stores."""
