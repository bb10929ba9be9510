"""Where Episodes happen: boxes for untrusted code, tools, Tasks and Domains, rollouts, verifiers."""
