"""Pictures of plans: a history of frames, told as a text grid, as a scene of shapes (SVG, PNG, GIF), or as a trace."""
