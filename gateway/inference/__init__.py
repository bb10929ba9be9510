"""One model call from the caller's request to the recorder: what every API surface is built on."""
