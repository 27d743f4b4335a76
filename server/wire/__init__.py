"""What goes over the wire: schemas, answers and error bodies."""
