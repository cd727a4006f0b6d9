"""How does it look? Figures in, whole Plotly figures and sentences out; pure functions."""
