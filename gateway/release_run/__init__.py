"""The release controller: takes a candidate by its ReleasePlan from evaluation to all traffic, or ends it."""
