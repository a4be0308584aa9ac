"""The JSON API, one module per noun."""
