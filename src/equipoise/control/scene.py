"""Scene of the peg-in-hole task: its measures, and the MuJoCo model made of them.

The surface of the plate is z = 0, and the tip of the peg hangs at the origin when all joints are at zero. The plate is
four boxes laid around the hole like the blades of a pinwheel, so that shifting them makes the hole wider or narrower
and moves it, and the model is compiled once. They are mocap bodies: their positions are part of the state.
"""

PHYSICS_STEP = 0.0025  # s
SAMPLE_STEPS = 2  # physics steps between two force samples: 200 Hz
FORCE_SAMPLES = 10  # force samples in a control step
CONTROL_STEP = PHYSICS_STEP * SAMPLE_STEPS * FORCE_SAMPLES  # s: 20 Hz

PEG = 0.005  # m, half its width
PEG_LENGTH = 0.035  # m
CLEARANCES = (0.0005, 0.001)  # m, on each side of the peg
SUCCESS_DEPTH = 0.015  # m
SEEN, UNSEEN = 0.03, 0.04  # m, the largest |x| and |y| of a hole
WORKSPACE = 0.07  # m, the largest |x| and |y| of the peg
CEILING = 0.06  # m, the largest z of the tip

STIFFNESS = 3500.0  # N/m of the position actuators
DAMPING = 110.0  # N·s/m
JAM_DEPTH = 0.006  # m, where the block of a jammed hole stands
JAM_FORCE, JAM_STEPS = 12.0, 6  # N, the push to which it gives way, and the control steps that this takes
JAM_DAMPING = 40.0  # N·s/m, its resistance afterwards

PICTURE = 64  # pixels, width and height of what a policy sees
PLATE_WIDTH, PLATE_DEPTH = 0.16, 0.04  # m, of each of the four boxes
# The corner of the hole at which each box has a corner, and the direction of the box's centre from there.
BLADES = (((1, -1), (1, 1)), ((1, 1), (-1, 1)), ((-1, 1), (-1, -1)), ((-1, -1), (1, -1)))
LINING_TOP = 0.0004  # m below the surface, where the darkness in the hole begins
AWAY = 0.1  # m, how far below the plate the block of a jam lies where there is none

MOVING = 1  # the group of what moves before the camera

_BOX = f"{PLATE_WIDTH / 2} {PLATE_WIDTH / 2} {PLATE_DEPTH / 2}"
_JOINT = '<joint name="{0}" type="slide" axis="{1}" range="{2}" limited="true"/>'
_PLATE = f"""
    <body name="plate{{0}}" mocap="true">
      <geom name="plate{{0}}" type="box" size="{_BOX}" rgba="0.62 0.64 0.66 1" contype="1" conaffinity="2"/>
    </body>"""

MODEL = f"""
<mujoco model="plug">
  <option timestep="{PHYSICS_STEP}" gravity="0 0 0" integrator="implicitfast" cone="elliptic" impratio="5"/>
  <visual>
    <quality shadowsize="0" offsamples="0"/>
    <global offwidth="640" offheight="640"/>
    <headlight ambient="0.35 0.35 0.35" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <map znear="0.05" zfar="20"/>
  </visual>
  <default>
    <geom friction="0.25 0.001 0.0001" solref="0.006 1" solimp="0.95 0.99 0.0005"/>
  </default>
  <worldbody>
    <light pos="0.2 -0.2 0.6" dir="-0.3 0.3 -0.9" directional="true" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <camera name="camera" pos="0 -0.205 0.30" xyaxes="1 0 0 0 0.806 0.592" fovy="21"/>
    {"".join(_PLATE.format(number) for number in range(len(BLADES)))}
    <body name="hole" mocap="true">
      <geom name="lining" type="box" pos="0 0 {-LINING_TOP - PLATE_DEPTH / 2}" size="0.007 0.007 {PLATE_DEPTH / 2}"
        rgba="0.05 0.05 0.06 1" contype="0" conaffinity="0"/>
      <body name="jam" pos="0 0 {-JAM_DEPTH - 0.002}">
        <joint name="jam" type="slide" axis="0 0 1" damping="{JAM_DAMPING}"/>
        <geom name="jam" type="box" size="0.003 0.003 0.002" mass="0.05" rgba="0.05 0.05 0.06 1"
          contype="4" conaffinity="2"/>
      </body>
    </body>
    <body name="gantry">
      {_JOINT.format("x", "1 0 0", f"{-WORKSPACE} {WORKSPACE}")}
      {_JOINT.format("y", "0 1 0", f"{-WORKSPACE} {WORKSPACE}")}
      {_JOINT.format("z", "0 0 1", f"-0.03 {CEILING}")}
      <geom name="gantry" group="{MOVING}" type="box" pos="0 0 {PEG_LENGTH + 0.01}" size="0.009 0.009 0.01" mass="0.95"
        rgba="0.20 0.30 0.55 1" contype="0" conaffinity="0"/>
      <body name="peg" pos="0 0 {PEG_LENGTH / 2}">
        <geom name="peg" group="{MOVING}" type="box" size="{PEG} {PEG} {PEG_LENGTH / 2}" mass="0.05"
          rgba="0.90 0.50 0.15 1" contype="2" conaffinity="5"/>
        <site name="wrist" pos="0 0 {PEG_LENGTH / 2}" size="0.001" group="5"/>
      </body>
    </body>
  </worldbody>
  <equality>
    <joint name="jam" joint1="jam" polycoef="0 0 0 0 0" solref="0.006 1" solimp="0.99 0.999 0.0005"/>
  </equality>
  <actuator>
    {"".join(f'<position name="{axis}" joint="{axis}" kp="{STIFFNESS}" kv="{DAMPING}"/>' for axis in "xyz")}
  </actuator>
  <sensor>
    <force name="force" site="wrist"/>
    <torque name="torque" site="wrist"/>
  </sensor>
</mujoco>
"""
