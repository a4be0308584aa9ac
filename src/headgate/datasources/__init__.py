"""Datasources as people edit them: documents, the registry, its file, and health. No loops."""
