"""The FCFL server side: update, schedule, divergence, participation, and the Flower Strategy that drives rounds."""
