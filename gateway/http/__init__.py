"""Raw HTTP for the routes that are called all the time, past ASGI where the server allows it."""
