"""Programs that run inside boxes; nothing of Hone imports them, they are copied next to each box."""
