"""SkyPilot's program `sky`: what it is told, what it answers, and the life of what it has started."""
