"""The database: named statements, migrations, one writer with group commit, and readers."""
