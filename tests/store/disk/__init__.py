"""Tests of app/store/disk."""
