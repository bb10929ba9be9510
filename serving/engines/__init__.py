"""The port to an inference engine, with vLLM over HTTP and a fake that speaks like it."""
