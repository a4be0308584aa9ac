"""Groups of programs outside: their orders and deadlines on this node."""
