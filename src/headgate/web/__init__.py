"""HTTP: the API, the console and the doors that other systems knock at."""
