"""What is measured about this project. `make bench` runs it."""
