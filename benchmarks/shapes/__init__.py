"""Shapes in time: videos whose every fact is known, their cache, and what is asked about them."""

from benchmarks.shapes.scene import Event, Scene, make_scene
from benchmarks.shapes.task import Task, make_task

__all__ = ["Event", "Scene", "Task", "make_scene", "make_task"]
