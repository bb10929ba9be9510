"""``hone demo``: the whole loop on a small real model, watched."""
