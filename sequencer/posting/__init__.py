"""What happens in a run, told to the places where people already look."""
