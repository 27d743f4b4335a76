<<<<<<< HEAD
"""The routes, one module per family."""
=======
"""Routes."""
>>>>>>> main
