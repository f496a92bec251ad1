"""A pytest plugin: the first example that fails is enough; nobody reads a smaller one here."""

from hypothesis import Phase, settings

settings.register_profile("first example", phases=(Phase.explicit, Phase.generate))
settings.load_profile("first example")
