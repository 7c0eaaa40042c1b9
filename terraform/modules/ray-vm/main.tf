# Machines with Ray and Chairlift, without Kubernetes: one head, and workers that are replaced when one
# dies. cloud-init installs what is needed; systemd starts it, and starts it again.

terraform {
  required_version = ">= 1.11" # ephemeral values and write-only arguments: secrets stay out of the state
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }
}

data "aws_partition" "this" {}
data "aws_region" "this" {}

# Ubuntu 24.04, whose Python is 3.12: for GPUs with NVIDIA's driver.
data "aws_ssm_parameter" "ami" {
  for_each = {
    cpu = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
    gpu = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
  }

  name = each.value
}

locals {
  tags      = merge(var.tags, { Service = var.name })
  partition = data.aws_partition.this.partition
  weights   = "/var/lib/chairlift/weights"
  http_port = 8000
  # What `chairlift serve --config` reads; the sections of var.settings go over it, key by key.
  settings = merge(var.settings, {
    http   = merge({ host = "0.0.0.0", port = local.http_port }, try(var.settings.http, {}))
    model  = merge(var.model == null ? {} : { path = "${local.weights}/${var.model}" }, try(var.settings.model, {}))
    router = merge({ replicas = var.workers.count }, try(var.settings.router, {}))
    workers = merge(
      { replicas = var.workers.count * max(var.workers.gpus, 1), token_file = "/etc/chairlift/token" },
      try(var.settings.workers, {}),
    )
  })
  user_data = {
    for role in ["head", "worker"] : role => templatefile("${path.module}/templates/cloud-init.yaml.tftpl", {
      constraints = indent(6, var.constraints)
      start       = role == "head" ? "--head --port=6379 --num-cpus=0 --num-gpus=0 --dashboard-host=127.0.0.1" : "--address=${aws_network_interface.head.private_ip}:6379"
      setup = indent(6, templatefile("${path.module}/templates/setup.sh.tftpl", {
        package = var.package
        ray     = "ray[serve]==${var.ray_version}"
        region  = data.aws_region.this.region
        secret  = aws_secretsmanager_secret.tokens.name
        bucket  = module.weights.bucket
        weights = local.weights
        model   = var.model == null ? "" : var.model
        role    = role
      }))
      serve = indent(6, yamlencode({
        proxy_location = "Disabled" # routers listen themselves
        applications = [{
          name         = "chairlift"
          import_path  = "chairlift.deployments.app:build"
          route_prefix = null
          args         = local.settings
        }]
      }))
    })
  }
}

module "key" {
  source = "../aws/key"

  name = var.name
  tags = local.tags
}

module "network" {
  source = "../aws/network"

  name          = var.name
  cidr          = var.cidr
  flow_log_days = var.flow_log_days
  kms_key_arn   = module.key.arn
  tags          = local.tags
}

module "weights" {
  source = "../aws/weights"

  name          = var.name
  kms_key_arn   = module.key.arn
  force_destroy = !var.deletion_protection
  tags          = local.tags
}

module "budget" {
  source = "../aws/budget"

  name        = var.name
  monthly_usd = var.budget.monthly_usd
  emails      = var.budget.emails
  tags        = local.tags
}

module "door" {
  source = "../aws/door"
  count  = var.domain == null ? 0 : 1

  name                     = var.name
  domain                   = var.domain.name
  zone_id                  = var.domain.zone_id
  client_cidrs             = var.domain.client_cidrs
  internal                 = var.domain.internal
  vpc_id                   = module.network.vpc_id
  subnet_ids               = var.domain.internal ? module.network.private_subnet_ids : module.network.public_subnet_ids
  target_security_group_id = aws_security_group.node.id
  http_port                = local.http_port
  grpc_port                = local.http_port + 1000
  deletion_protection      = var.deletion_protection
  tags                     = local.tags
}

# Two words, the cluster's and Ray's; they are made here and kept nowhere else.
ephemeral "aws_secretsmanager_random_password" "cluster" {
  password_length     = 64
  exclude_punctuation = true
}

ephemeral "aws_secretsmanager_random_password" "ray" {
  password_length     = 64
  exclude_punctuation = true
}

resource "aws_secretsmanager_secret" "tokens" {
  # checkov:skip=CKV2_AWS_57:two words of a token are valid at a time while it is changed, by hand, on all nodes (docs/many-nodes.md)
  name_prefix             = "${var.name}-tokens-"
  description             = "The cluster's token, and Ray's"
  kms_key_id              = module.key.arn
  recovery_window_in_days = 7
  tags                    = local.tags
}

resource "aws_secretsmanager_secret_version" "tokens" {
  secret_id                = aws_secretsmanager_secret.tokens.id
  secret_string_wo_version = 1
  secret_string_wo = join(" ", [
    ephemeral.aws_secretsmanager_random_password.cluster.random_password,
    ephemeral.aws_secretsmanager_random_password.ray.random_password,
  ])
}

resource "aws_iam_role" "node" {
  name = "${var.name}-node"
  tags = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "weights" {
  name   = "read-weights"
  role   = aws_iam_role.node.id
  policy = module.weights.read_policy
}

resource "aws_iam_role_policy" "tokens" {
  name = "read-tokens"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue"]
      Resource = [aws_secretsmanager_secret.tokens.arn]
    }]
  })
}

# A shell by `aws ssm start-session`: no port, no key, and each session on record.
resource "aws_iam_role_policy_attachment" "ssm" {
  role       = aws_iam_role.node.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "node" {
  name = "${var.name}-node"
  role = aws_iam_role.node.name
  tags = local.tags
}

resource "aws_security_group" "node" {
  name_prefix = "${var.name}-node-"
  description = "Head and workers"
  vpc_id      = module.network.vpc_id
  tags        = merge(local.tags, { Name = "${var.name}-node" })

  lifecycle {
    create_before_destroy = true
  }
}

# Ray takes ports as it likes, between its own nodes.
resource "aws_vpc_security_group_ingress_rule" "node" {
  security_group_id            = aws_security_group.node.id
  description                  = "Ray, routers and workers between each other"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "node" {
  security_group_id = aws_security_group.node.id
  description       = "Packages, weights, the cloud's own services"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  tags              = local.tags
}

# Another head has the same address, so the workers find it again.
resource "aws_network_interface" "head" {
  subnet_id       = module.network.private_subnet_ids[0]
  security_groups = [aws_security_group.node.id]
  description     = "${var.name} head"
  tags            = merge(local.tags, { Name = "${var.name}-head" })
}

resource "aws_instance" "head" {
  ami                         = data.aws_ssm_parameter.ami["cpu"].insecure_value
  instance_type               = var.head_instance_type
  iam_instance_profile        = aws_iam_instance_profile.node.name
  ebs_optimized               = true
  monitoring                  = true
  user_data_base64            = base64gzip(local.user_data.head)
  user_data_replace_on_change = true
  tags                        = merge(local.tags, { Name = "${var.name}-head" })
  volume_tags                 = local.tags

  primary_network_interface {
    network_interface_id = aws_network_interface.head.id
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 50
    encrypted   = true
  }

  lifecycle {
    ignore_changes = [ami] # a newer image is taken on with the next change, not by itself
  }

  depends_on = [aws_iam_role_policy.tokens, aws_iam_role_policy.weights, aws_secretsmanager_secret_version.tokens]
}

resource "aws_launch_template" "worker" {
  name_prefix            = "${var.name}-worker-"
  image_id               = data.aws_ssm_parameter.ami[var.workers.gpus > 0 ? "gpu" : "cpu"].insecure_value
  user_data              = base64gzip(local.user_data.worker)
  ebs_optimized          = true
  update_default_version = true
  tags                   = local.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.node.arn
  }

  monitoring {
    enabled = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces {
    associate_public_ip_address = false
    delete_on_termination       = true
    security_groups             = [aws_security_group.node.id]
  }

  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      volume_type           = "gp3"
      volume_size           = var.workers.disk_gib
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${var.name}-worker" })
    }
  }
}

resource "aws_autoscaling_group" "worker" {
  name_prefix               = "${var.name}-worker-"
  min_size                  = var.workers.count
  max_size                  = var.workers.count + 1 # one more while machines are replaced
  desired_capacity          = var.workers.count
  vpc_zone_identifier       = module.network.private_subnet_ids
  health_check_type         = var.domain == null ? "EC2" : "ELB"
  health_check_grace_period = 1800 # packages and weights
  capacity_rebalance        = var.workers.spot
  target_group_arns         = var.domain == null ? [] : values(module.door[0].target_group_arns)

  mixed_instances_policy {
    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.worker.id
        version            = aws_launch_template.worker.latest_version
      }

      dynamic "override" {
        for_each = var.workers.instance_types

        content {
          instance_type = override.value
        }
      }
    }

    instances_distribution {
      on_demand_percentage_above_base_capacity = var.workers.spot ? 0 : 100
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
  }

  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 110
    }
  }

  dynamic "tag" {
    for_each = merge(local.tags, { Name = "${var.name}-worker" })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }
}
