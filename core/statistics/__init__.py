"""Statistics as pure functions, each with its formula and source: what decisions about PolicyVersions rest on."""
