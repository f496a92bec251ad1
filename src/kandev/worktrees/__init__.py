"""Directories of sessions: git worktrees, directories in place, and empty ones."""

from kandev.worktrees.manager import Prepared, Removed, Worktrees
from kandev.worktrees.workspace import (
    State,
    Workspace,
    inspect,
    plan_empty,
    plan_in_place,
    plan_worktree,
)

__all__ = [
    "Prepared",
    "Removed",
    "State",
    "Workspace",
    "Worktrees",
    "inspect",
    "plan_empty",
    "plan_in_place",
    "plan_worktree",
]
