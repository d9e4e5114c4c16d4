"""Migrations of stores: who may go on, and what an interruption leaves behind."""
