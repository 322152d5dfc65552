"""Exams: policies and baselines compared on fresh hosts, each arm at its best learning rate.

An arm's way: the table (`arms`), its policy or what it derives from others (`plans`, `derived`), its learning rate
(`tuning`), its hosts (`hosts`), its runs (`runs`), its verdict (`verdicts`), its record (`records`).
"""
