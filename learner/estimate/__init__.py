"""What a run will need, said before it starts: memory and time, from shapes alone and without torch."""
