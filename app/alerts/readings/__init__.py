"""What can an alert rule be on?"""
