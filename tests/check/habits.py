"""Files that are right in daily use, against the references of the red team, whose files are wrong in one way of calling."""

from workbench.drive.checking.attacks import modules, reference

REFERENCE = reference("mlp")
RIGHT = REFERENCE.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
# What is common to the two attacks that have a backward of their own, without what is wrong in it.
RIGHT_BACKWARD = modules()["no_input_gradient_alone"].replace(" if ctx.needs_input_grad[1] else (0 * x, None, None)", "")
NORMED = reference("normed")
NORMED_RIGHT = NORMED.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]
DOES_NOT_COUNT = NORMED_RIGHT.replace("return torch.tanh(self.norm(self.linear(x)))", """norm, y = self.norm, self.linear(x)
        y = nn.functional.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training)
        return torch.tanh(y)""")
