"""A/B Experiments on live traffic: who gets which arm, what came of it, and the way back."""
