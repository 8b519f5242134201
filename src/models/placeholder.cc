// placeholder while the room is built
