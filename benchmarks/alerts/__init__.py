"""Alerts: do rules fire where they should, and only there, and is every notification sent?"""
