"""What do all charts share? Figures and axes as plain data, bars, heatmaps, the step axis, colours.

Start with `figure.py`. All other chart packages import this one; it imports none of them.
"""
