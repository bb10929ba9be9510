"""Routes under ``/v1`` that follow the OpenAI API."""
