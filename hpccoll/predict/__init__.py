"""What plans take on machines that one cannot measure on, and what measurements say about the machine."""
