"""What the tool service runs inside its boxes."""
