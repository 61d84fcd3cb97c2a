"""Laws and figures of a GPU, in parts that end by themselves within eight minutes each: `make gpu`."""
