"""Files and folders: JSON Lines, CSV and Parquet."""
